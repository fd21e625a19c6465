# A consumer that is further behind than the log reaches gets everything.
source A
limit 3
complete A
next
  revision 1, full
  node n1 [] pods [] services []
A: service default/a 10.96.0.1:80
A: service default/b 10.96.0.2:80
A: service default/c 10.96.0.3:80
next
  revision 4
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
  default/b
    ClusterIP 10.96.0.2:80/TCP -> Reject
  default/c
    ClusterIP 10.96.0.3:80/TCP -> Reject
A: slice default/a-1 a 10.0.0.1
A: slice default/a-1 a 10.0.0.2
A: slice default/a-1 a 10.0.0.3
next
  revision 7
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.3:8080
A: slice default/a-1 a 10.0.0.4
A: slice default/a-1 a 10.0.0.5
A: slice default/a-1 a 10.0.0.6
A: slice default/a-1 a 10.0.0.7
next
  revision 11, full
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.7:8080
  default/b
    ClusterIP 10.96.0.2:80/TCP -> Reject
  default/c
    ClusterIP 10.96.0.3:80/TCP -> Reject
# One update that is larger than the log.
A: delete slice default/a-1; service default/d 10.96.0.4:80; service default/e 10.96.0.5:80; service default/f 10.96.0.6:80
next
  revision 12, full
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
  default/b
    ClusterIP 10.96.0.2:80/TCP -> Reject
  default/c
    ClusterIP 10.96.0.3:80/TCP -> Reject
  default/d
    ClusterIP 10.96.0.4:80/TCP -> Reject
  default/e
    ClusterIP 10.96.0.5:80/TCP -> Reject
  default/f
    ClusterIP 10.96.0.6:80/TCP -> Reject
A: delete service default/a
next
  revision 13
  default/a removed
