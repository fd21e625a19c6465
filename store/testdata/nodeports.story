# Node ports conflict with node ports only.
source A
A: service default/a 10.96.0.1:30080 nodePort=30080; service default/b 10.96.0.2:30080 nodePort=30080; service default/c 10.96.0.3:30080 udp nodePort=30080
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/a
    ClusterIP 10.96.0.1:30080/TCP -> Reject
    NodePort IPv4 node port 30080/TCP -> Reject
  default/b
    ClusterIP 10.96.0.2:30080/TCP -> Reject
  default/c
    ClusterIP 10.96.0.3:30080/UDP -> Reject
    NodePort IPv4 node port 30080/UDP -> Reject
logs
  msg="service is not fully served" service=default/b reason=AddressConflict field=spec.ports[].nodePort problem="IPv4 node port 30080/TCP belongs to another service" heldBy=default/a remedy="give one of the two services another address or port"
A: delete service default/a
next
  revision 2
  default/b
    ClusterIP 10.96.0.2:30080/TCP -> Reject
    NodePort IPv4 node port 30080/TCP -> Reject
  default/a removed
