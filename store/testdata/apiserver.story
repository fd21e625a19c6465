# default/kubernetes keeps its last endpoints rather than fall to none. Others do not.
source A
A: service default/kubernetes 10.96.0.1:443; service default/other 10.96.0.2:443
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/kubernetes
    ClusterIP 10.96.0.1:443/TCP -> Reject
  default/other
    ClusterIP 10.96.0.2:443/TCP -> Reject
A: slice default/k kubernetes 10.0.0.1 10.0.0.2; slice default/o other 10.0.0.3
next
  revision 2
  default/kubernetes
    ClusterIP 10.96.0.1:443/TCP -> 10.0.0.1:8080 10.0.0.2:8080
  default/other
    ClusterIP 10.96.0.2:443/TCP -> 10.0.0.3:8080
A: slice default/k kubernetes 10.0.0.1
next
  revision 3
  default/kubernetes
    ClusterIP 10.96.0.1:443/TCP -> 10.0.0.1:8080
A: delete slice default/k; delete slice default/o
next
  revision 4
  default/other
    ClusterIP 10.96.0.2:443/TCP -> Reject
logs
  msg="service has no usable endpoints left; keeping the last known ones" service=default/kubernetes
A: slice default/k kubernetes 10.0.0.1!unready
next
  nothing
logs
A: slice default/k kubernetes 10.0.0.7
next
  revision 5
  default/kubernetes
    ClusterIP 10.96.0.1:443/TCP -> 10.0.0.7:8080
# A service that was deleted is forgotten with its endpoints.
A: delete slice default/k
A: delete service default/kubernetes
next
  revision 6
  default/kubernetes removed
A: service default/kubernetes 10.96.0.1:443
next
  revision 7
  default/kubernetes
    ClusterIP 10.96.0.1:443/TCP -> Reject
