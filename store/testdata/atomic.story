# All of one Update is one revision; the two services are never seen apart.
source A
complete A
next
  revision 1, full
  node n1 [] pods [] services []
A: service default/a 10.96.0.1:80; service default/b 10.96.0.2:80; slice default/a-1 a 10.0.0.1; slice default/b-1 b 10.0.0.2
next
  revision 2
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
  default/b
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.2:8080
A: delete service default/a; slice default/b-1 b 10.0.0.3
next
  revision 3
  default/b
    ClusterIP 10.96.0.2:80/TCP -> 10.0.0.3:8080
  default/a removed
# What is both deleted and set, is set.
A: delete service default/b; service default/b 10.96.0.4:80
next
  revision 4
  default/b
    ClusterIP 10.96.0.4:80/TCP -> 10.0.0.3:8080
