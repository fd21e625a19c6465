# What changes while the consumer is busy is merged.
source A
complete A
next
  revision 1, full
  node n1 [] pods [] services []
A: service default/a 10.96.0.1:80
A: service default/b 10.96.0.2:80
A: slice default/a-1 a 10.0.0.1
A: slice default/a-1 a 10.0.0.2
A: delete service default/b
A: service default/c 10.96.0.3:80
next
  revision 7
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.2:8080
  default/c
    ClusterIP 10.96.0.3:80/TCP -> Reject
  default/b removed
next
  nothing
