package kube

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// kubeconfig is the text of one, with everything in it.
func kubeconfig(server, ca, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, server, base64.StdEncoding.EncodeToString([]byte(ca)), token)
}

// TestKubeconfigIsFollowed replaces the kubeconfig's token and authority, then the API server, while the source runs. A
// broken kubeconfig, or a broken file that it names, changes nothing until it is fixed.
func TestKubeconfigIsFollowed(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		certificate, ca := authority(t)
		a.host, a.token = "https://api.test", "first"
		a.tls = &tls.Config{Certificates: []tls.Certificate{certificate}}
		file := write(t, "kubeconfig", kubeconfig(a.host, ca, a.token))
		x := service("a/x", 80)
		a.put(x, service("a/y", 80))
		other := newAPIServer(t)
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, "other.test") {
				return other.dial(ctx, network, address)
			}
			return a.dial(ctx, network, address)
		}
		w := begin(a, func(o *Options) {
			config, renew, err := Connection{Kubeconfig: file}.Follow()
			if err != nil {
				t.Fatal(err)
			}
			config.Dial, o.Config = dial, config
			o.Renew = func() (*rest.Config, error) {
				config, err := renew()
				if config != nil {
					config.Dial = dial
				}
				return config, err
			}
		})
		w.complete(true)
		w.holds("a/x:80", "a/y:80", hereNode)
		settle(time.Minute)
		w.sink.updates = nil

		certificate, ca = authority(t)
		a.do(func() { a.token, a.tls = "second", &tls.Config{Certificates: []tls.Certificate{certificate}} })
		a.cut(false)
		settle(time.Minute)
		if p := w.source.Problems(); len(p) != 5 {
			t.Errorf("the old kubeconfig should be of no use any more; problems: %v", p)
		}
		write(t, file, "nonsense")
		settle(time.Minute)
		w.logged("API server cannot be reached", "keeping the last one")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		settle(time.Minute)
		w.logged("no such file")
		w.updates()
		caFile := write(t, "ca.pem", "nonsense")
		write(t, file, strings.Replace(kubeconfig(a.host, "", "second"), "certificate-authority-data:", "certificate-authority: "+caFile, 1))
		settle(time.Minute)
		w.logged("unable to load root certificates")
		w.updates()
		write(t, caFile, ca)
		settle(2 * renewPeriod)
		w.noProblems()
		w.holds("a/x:80", "a/y:80", hereNode)
		w.logged("switching API server connection", "API server can be reached again")
		w.sink.updates = nil
		a.put(service("a/z", 80))
		w.holds("a/x:80", "a/y:80", "a/z:80", hereNode)

		// The lists of another API server decide, whatever the versions mean there; nothing goes before they have come.
		other.put(node("here"))
		other.version = versionNumber(x.GetResourceVersion()) - 1
		other.put(service("a/x", 81)) // has the version of the other a/x
		other.do(func() { other.held["services"] = true })
		w.updates("a/z:80")
		write(t, file, kubeconfig("http://other.test", "", "second"))
		settle(time.Minute)
		w.holds("a/x:80", "a/y:80", "a/z:80", hereNode)
		other.do(func() { other.held["services"] = false })
		settle(time.Minute)
		w.noProblems()
		w.holds("a/x:81", hereNode)
	})
}
