# A change of the node alone is a revision. Its addresses keep their order, ranges are sorted and distinct.
source A
complete A
next
  revision 1, full
  node n1 [] pods [] services []
A: node n1 198.51.100.7 192.0.2.1 10.2.0.0/24 10.1.0.0/24; node n2 192.0.2.2
next
  revision 2
  node n1 [198.51.100.7 192.0.2.1] pods [10.1.0.0/24 10.2.0.0/24] services []
A: cidr b 10.97.0.0/16 10.96.0.0/16; cidr a 10.96.0.0/16 10.95.0.1/16
next
  revision 3
  node n1 [198.51.100.7 192.0.2.1] pods [10.1.0.0/24 10.2.0.0/24] services [10.95.0.0/16 10.96.0.0/16 10.97.0.0/16]
A: node n1 192.0.2.1 198.51.100.7 10.1.0.0/24 10.2.0.0/24
next
  revision 4
  node n1 [192.0.2.1 198.51.100.7] pods [10.1.0.0/24 10.2.0.0/24] services [10.95.0.0/16 10.96.0.0/16 10.97.0.0/16]
A: delete cidr b
next
  revision 5
  node n1 [192.0.2.1 198.51.100.7] pods [10.1.0.0/24 10.2.0.0/24] services [10.95.0.0/16 10.96.0.0/16]
A: delete node n1
next
  revision 6
  node n1 [] pods [] services [10.95.0.0/16 10.96.0.0/16]
