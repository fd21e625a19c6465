# A slice whose label moves leaves the one service and joins the other, in one revision.
source A
A: service default/a 10.96.0.1:80; service default/b 10.96.0.2:80; slice default/s a 10.0.0.1; slice default/t b 10.0.0.2
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
  default/b
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.2:8080
A: slice default/s b 10.0.0.1
next
  revision 2
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
  default/b
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.1:8080 10.0.0.2:8080
# Without the label it belongs to nobody.
A: slice default/s
next
  revision 3
  default/b
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.2:8080
A: slice default/s a 10.0.0.1
next
  revision 4
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
# Slices that come before their service wait for it.
A: slice default/early c 10.0.0.3
next
  nothing
A: service default/c 10.96.0.3:80
next
  revision 5
  default/c
    ClusterIP 10.96.0.3:80/TCP -> 10.0.0.3:8080
A: delete service default/c
next
  revision 6
  default/c removed
A: delete slice default/early
A: service default/c 10.96.0.3:80
next
  revision 7
  default/c
    ClusterIP 10.96.0.3:80/TCP -> Reject
