# A frontend is held by one service: cluster IPs first, then by name. The holder does not depend on who came first.
source A
A: service default/m 10.96.0.1:80 external=192.0.2.10; slice default/m-1 m 10.0.0.1
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.1:8080
# A later name loses, and has its cluster IP only.
A: service default/z 10.96.0.2:80 external=192.0.2.10; slice default/z-1 z 10.0.0.2
next
  revision 2
  default/z
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.2:8080
logs
  msg="service is not fully served" service=default/z reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/m remedy="give one of the two services another address or port"
# An endpoint change does not log it again.
A: slice default/z-1 z 10.0.0.3
next
  revision 3
  default/z
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.3:8080
logs
# An earlier name takes it over; the record of m changes in the same revision.
A: service default/a 10.96.0.3:80 external=192.0.2.10; slice default/a-1 a 10.0.0.4
next
  revision 4
  default/a
    ClusterIP 10.96.0.3:80/TCP -> 10.0.0.4:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.4:8080
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
logs
  msg="service is not fully served" service=default/m reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/a remedy="give one of the two services another address or port"
# A cluster IP beats the name.
A: service default/y 192.0.2.10:80; slice default/y-1 y 10.0.0.5
next
  revision 5
  default/a
    ClusterIP 10.96.0.3:80/TCP -> 10.0.0.4:8080
  default/y
    ClusterIP 192.0.2.10:80/TCP -> 10.0.0.5:8080
logs
  msg="service is not fully served" service=default/a reason=AddressConflict field=spec.externalIPs problem="192.0.2.10:80/TCP belongs to another service" heldBy=default/y remedy="give one of the two services another address or port"
# The holders go: the claim passes on in the same revision.
A: delete service default/y; delete service default/a
next
  revision 6
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.1:8080
  default/a removed
  default/y removed
A: service default/m 10.96.0.1:80
next
  revision 7
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
  default/z
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.3:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.3:8080
# A service that loses its only frontend is there without ports.
A: service default/copy 10.96.0.1:80
next
  revision 8
  default/copy
    ClusterIP 10.96.0.1:80/TCP -> Reject
  default/m
logs
  msg="service is not fully served" service=default/m reason=AddressConflict field=spec.clusterIPs problem="10.96.0.1:80/TCP belongs to another service" heldBy=default/copy remedy="give one of the two services another address or port"
A: service default/copy 10.96.0.9:80
next
  revision 9
  default/copy
    ClusterIP 10.96.0.9:80/TCP -> Reject
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
# A service that shares a claim with one whose frontends change is not published again if nothing changes for it.
A: service default/m 10.96.0.1:80 external=192.0.2.10
next
  revision 10
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.1:8080
  default/z
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.3:8080
A: service default/m 10.96.0.1:80 external=192.0.2.10 external=192.0.2.11
next
  revision 11
  default/m
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
    ExternalIP 192.0.2.10:80/TCP -> 10.0.0.1:8080
    ExternalIP 192.0.2.11:80/TCP -> 10.0.0.1:8080
