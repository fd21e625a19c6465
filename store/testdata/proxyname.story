# Services that are not this instance's have no record, until they are.
source A
A: service default/a 10.96.0.1:80 proxy=other; service default/b headless; slice default/a-1 a 10.0.0.1; slice default/b-1 b 10.0.0.1
complete A
next
  revision 1, full
  node n1 [] pods [] services []
A: service default/a 10.96.0.1:80
next
  revision 2
  default/a
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
A: service default/a 10.96.0.1:80 proxy=
next
  revision 3
  default/a removed
