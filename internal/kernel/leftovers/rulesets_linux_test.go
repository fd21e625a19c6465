package leftovers

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// others are rules of a node that has no kube-proxy: the rules of Docker, Calico, the kubelet, the CNI plugin for
// host ports, kube-router and an administrator. Counters are set, because they also have to survive.
func others(v6 bool) string {
	text := `*mangle
:PREROUTING ACCEPT [7:700]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:cali-PREROUTING - [0:0]
[1:40] -A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
[2:80] -A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [3:300]
:DOCKER - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-SVC-MY-OWN - [0:0]
:KUBE-ROUTER-HAIRPIN - [0:0]
:cali-OUTPUT - [0:0]
:cali-fip-dnat - [0:0]
:empty - [0:0]
[11:1100] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
[12:1200] -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
[13:1300] -A OUTPUT ! -d @LOOPBACK -m addrtype --dst-type LOCAL -j DOCKER
[14:1400] -A OUTPUT -m comment --comment "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
[15:1500] -A POSTROUTING -s @NET ! -o docker0 -j MASQUERADE
[16:1600] -A POSTROUTING -m mark --mark 0x4000/0x4000 -g KUBE-ROUTER-HAIRPIN
[0:0] -A DOCKER -i docker0 -j RETURN
[17:1700] -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination @DEST:80
[18:1800] -A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8443 -j CNI-DN-0123456789abcdef01234
[0:0] -A CNI-DN-0123456789abcdef01234 -s @NET -p tcp -m tcp --dport 8443 -j CNI-HOSTPORT-SETMARK
[0:0] -A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
[0:0] -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
[0:0] -A KUBE-SVC-MY-OWN -p udp
[0:0] -A KUBE-ROUTER-HAIRPIN -s @HOST -d @HOST -j MASQUERADE
[0:0] -A cali-OUTPUT -j cali-fip-dnat
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [5:500]
:OUTPUT ACCEPT [0:0]
:DOCKER-USER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:admin - [0:0]
[21:2100] -A INPUT -j KUBE-FIREWALL
[22:2200] -A INPUT -p tcp -m tcp --dport 22 -j admin
[23:2300] -A FORWARD -j DOCKER-USER
[24:2400] -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[25:2500] -A OUTPUT -j KUBE-FIREWALL
[0:0] -A DOCKER-USER -j RETURN
[0:0] -A KUBE-FIREWALL ! -s @LOOPBACK -d @LOOPBACK -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
[0:0] -A KUBE-NWPLCY-DEFAULT -m comment --comment "rule to mark traffic matching a network policy" -j MARK --set-xmark 0x10000/0x10000
[26:2600] -A admin -s @HOST
[27:2700] -A admin -g DOCKER-USER
COMMIT
`
	if v6 {
		return strings.NewReplacer("@LOOPBACK", "::1/128", "@NET", "fd00:17::/64", "@DEST", "[fd00:17::2]", "@HOST",
			"fd00::9/128").Replace(text)
	}
	return strings.NewReplacer("@LOOPBACK", "127.0.0.0/8", "@NET", "172.17.0.0/16", "@DEST", "172.17.0.2", "@HOST",
		"192.0.2.9/32").Replace(text)
}

// policies restores the counters of built-in chains' policies as in others: iptables-legacy-restore loses them.
const policies = `*mangle
:PREROUTING ACCEPT [7:700]
COMMIT
*nat
:POSTROUTING ACCEPT [3:300]
COMMIT
*filter
:FORWARD DROP [5:500]
COMMIT
`

// hash is kube-proxy's for names of chains.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// iptablesMode are rules as kube-proxy writes them in iptables mode, for a number of services with two endpoints
// each; every tenth has a NodePort and source ranges, and every seventh no endpoints. Jumps go before and after other
// programs' jumps.
func iptablesMode(services int, v6 bool) string {
	var chains, rules, reject strings.Builder
	for n := range services {
		svc, name := hash(fmt.Sprint("svc", n)), fmt.Sprintf("ns/svc-%d:http", n)
		vip, mask := fmt.Sprintf("10.96.%d.%d", n/250, n%250+1), "/32"
		pod := func(i int) string { return fmt.Sprintf("10.244.%d.%d", n/100, n%100*2+i+1) }
		to := pod
		if v6 {
			vip, mask = fmt.Sprintf("fd00:96::%x", n+1), "/128"
			pod = func(i int) string { return fmt.Sprintf("fd00:244::%x", n*2+i+1) }
			to = func(i int) string { return "[" + pod(i) + "]" }
		}
		if n%7 == 6 {
			fmt.Fprintf(&reject, "-A KUBE-SERVICES -d %s%s -p tcp -m comment --comment \"%s has no endpoints\" -m tcp --dport 80 -j REJECT\n", vip, mask, name)
			continue
		}
		fmt.Fprintf(&chains, ":KUBE-SVC-%s - [0:0]\n", svc)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s%s -p tcp -m comment --comment \"%s cluster IP\" -m tcp --dport 80 -j KUBE-SVC-%s\n", vip, mask, name, svc)
		fmt.Fprintf(&rules, "-A KUBE-SVC-%s -d %s%s -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n", svc, vip, mask)
		for i := range 2 {
			sep := hash(fmt.Sprint("sep", n, i))
			fmt.Fprintf(&chains, ":KUBE-SEP-%s - [0:0]\n", sep)
			if i == 0 {
				fmt.Fprintf(&rules, "-A KUBE-SVC-%s -m comment --comment \"%s\" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-%s\n", svc, name, sep)
			} else {
				fmt.Fprintf(&rules, "-A KUBE-SVC-%s -m comment --comment \"%s\" -j KUBE-SEP-%s\n", svc, name, sep)
			}
			fmt.Fprintf(&rules, "-A KUBE-SEP-%s -s %s -m comment --comment \"%s\" -j KUBE-MARK-MASQ\n", sep, pod(i), name)
			fmt.Fprintf(&rules, "-A KUBE-SEP-%s -p tcp -m comment --comment \"%s\" -m recent --name KUBE-SEP-%s --set -m tcp -j DNAT --to-destination %s:8080\n", sep, name, sep, to(i))
		}
		if n%10 == 0 {
			fmt.Fprintf(&chains, ":KUBE-EXT-%s - [0:0]\n:KUBE-FW-%s - [0:0]\n:KUBE-SVL-%s - [0:0]\n", svc, svc, svc)
			fmt.Fprintf(&rules, "-A KUBE-NODEPORTS -p tcp -m tcp --dport %d -j KUBE-EXT-%s\n", 30000+n, svc)
			fmt.Fprintf(&rules, "-A KUBE-EXT-%s -m comment --comment \"masquerade traffic\" -j KUBE-MARK-MASQ\n", svc)
			fmt.Fprintf(&rules, "-A KUBE-EXT-%s -j KUBE-SVC-%s\n-A KUBE-FW-%s -j KUBE-EXT-%s\n", svc, svc, svc, svc)
		}
	}
	return `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
` + chains.String() + `-I PREROUTING 2 -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
` + rules.String() + `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-I INPUT 2 -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-I FORWARD 2 -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
` + reject.String() + "COMMIT\n"
}

// ipvsModeSets are sets as kube-proxy makes them in IPVS mode, and one of kube-router.
const ipvsModeSets = `create KUBE-LOOP-BACK hash:ip,port,ip family inet
create KUBE-CLUSTER-IP hash:ip,port family inet
create KUBE-6-CLUSTER-IP hash:ip,port family inet6
create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-LOAD-BALANCER hash:ip,port family inet
create KUBE-IPVS-IPS hash:ip family inet
add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
add KUBE-CLUSTER-IP 10.96.0.10,udp:53
add KUBE-NODE-PORT-TCP 30080
add KUBE-IPVS-IPS 10.96.0.1
`

const otherSets = `create KUBE-SRC-ABCDEFGHIJKLMNOP hash:ip family inet
create cali40all-ipam-pools hash:net family inet
add cali40all-ipam-pools 10.244.0.0/16
`

// ipvsMode are the rules of mode ipvs.
const ipvsMode = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
`

// nftablesMode is a table as in nftables mode.
const nftablesMode = `table FAMILY kube-proxy {
	comment "rules for kube-proxy"
	set cluster-ips {
		type TYPE
		elements = { ADDRESS }
	}
	map service-ips {
		type TYPE . inet_proto . inet_service : verdict
		elements = { ADDRESS . tcp . 80 : goto service-X }
	}
	chain service-X {
		meta l4proto tcp dnat to ENDPOINT
	}
	chain services {
		FAMILY daddr . meta l4proto . th dport vmap @service-ips
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat
		jump services
	}
}
`
