# Two sources with the same object: the last write counts, and either can delete it.
source A
source B
A: service default/a 10.96.0.1:80
B: service default/a 10.96.0.2:80
complete A
complete B
next
  revision 1, full
  node n1 [] pods [] services []
  default/a
    ClusterIP 10.96.0.2:80/TCP -> Reject
A: service default/a 10.96.0.3:80
next
  revision 2
  default/a
    ClusterIP 10.96.0.3:80/TCP -> Reject
B: delete service default/a
next
  revision 3
  default/a removed
