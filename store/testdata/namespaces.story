# The services of a namespace go and come with its label.
source A
A: namespace dev disabled; service dev/a 10.96.0.1:80; slice dev/a-1 a 10.0.0.1; service default/b 10.96.0.2:80
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/b
    ClusterIP 10.96.0.2:80/TCP -> Reject
A: namespace dev
next
  revision 2
  dev/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
A: namespace dev disabled
next
  revision 3
  dev/a removed
# What changes meanwhile is known when it comes back, also by deletion of the namespace object.
A: slice dev/a-1 a 10.0.0.9
next
  nothing
A: delete namespace dev
next
  revision 4
  dev/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.9:8080
