# Objects that change nothing in the answer make no revision.
source A
A: service default/web 10.96.0.1:80; slice default/web-1 web 10.0.0.1; node n1 192.0.2.1; cidr main 10.96.0.0/16
complete A
next
  revision 1, full
  node n1 [192.0.2.1] pods [] services [10.96.0.0/16]
  default/web
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
A: service default/web 10.96.0.1:80
A: slice default/web-1 web 10.0.0.1 10.0.0.9!unready
A: node n1 192.0.2.1
A: node n1 zone=z1 192.0.2.1
A: node n2 192.0.2.2
A: cidr copy 10.96.0.0/16
A: namespace default
A: service default/other headless
A: delete service default/unknown; delete slice default/unknown; delete node n2; delete namespace nowhere
next
  nothing
