# Of two services that are equally good, the older one holds the address, whatever their names. Nobody loses an address to a newcomer.
source A
A: service default/m 10.96.0.1:80 external=192.0.2.10 created=2000
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/m
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
A: service attacker/a 10.96.0.2:80 external=192.0.2.10 created=3000
next
  revision 2
  attacker/a
    ClusterIP 10.96.0.2:80/TCP -> Reject
logs
  msg="service is not fully served" service=attacker/a reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/m remedy="give one of the two services another address or port"
A: service default/z 10.96.0.3:80 external=192.0.2.10 created=1000
next
  revision 3
  default/m
    ClusterIP 10.96.0.1:80/TCP -> Reject
  default/z
    ClusterIP 10.96.0.3:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
logs
  msg="service is not fully served" service=default/m reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/z remedy="give one of the two services another address or port"
# One whose age is not known is the youngest.
A: service aaa/a 10.96.0.4:80 external=192.0.2.10
next
  revision 4
  aaa/a
    ClusterIP 10.96.0.4:80/TCP -> Reject
logs
  msg="service is not fully served" service=aaa/a reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/z remedy="give one of the two services another address or port"
# The oldest is deleted and created again before anybody looks: its record is the same, and its claim is the youngest but one.
A: delete service default/z; service default/z 10.96.0.3:80 external=192.0.2.10 created=4000
next
  revision 5
  default/m
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
  default/z
    ClusterIP 10.96.0.3:80/TCP -> Reject
logs
  msg="service is not fully served" service=default/z reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/m remedy="give one of the two services another address or port"
# An address in the status of a load balancer beats an older externalIP.
A: service lb/lb 10.96.0.5:80 balancer=192.0.2.10 created=9000
next
  revision 6
  default/m
    ClusterIP 10.96.0.1:80/TCP -> Reject
  lb/lb
    ClusterIP 10.96.0.5:80/TCP -> Reject
    LoadBalancer 192.0.2.10:80/TCP -> Reject
logs
  msg="service is not fully served" service=default/m reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=lb/lb remedy="give one of the two services another address or port"
A: delete service lb/lb
next
  revision 7
  default/m
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
  lb/lb removed
# A cluster IP beats the address of a load balancer.
A: service lb/lb 10.96.0.5:80 balancer=10.96.0.1 created=1
next
  revision 8
  lb/lb
    ClusterIP 10.96.0.5:80/TCP -> Reject
logs
  msg="service is not fully served" service=lb/lb reason=AddressConflict field=status.loadBalancer problem="10.96.0.1:80/TCP belongs to another service" heldBy=default/m remedy="give one of the two services another address or port"
