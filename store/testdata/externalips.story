# An externalIP that is the address of a node is not routed, as long as that is so, whichever node it is.
source A
A: service default/a 10.96.0.1:80 external=192.0.2.10 external=192.0.2.11; node other 192.0.2.10
complete A
next
  revision 1, full
  node n1 [] pods [] services []
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.11:80/TCP -> Reject
# The node moves to the other address.
A: node other 192.0.2.11
next
  revision 2
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
# A second node has it as well, and the first one goes.
A: node n1 192.0.2.11
A: delete node other
next
  revision 3
  node n1 [192.0.2.11] pods [] services []
A: delete node n1
next
  revision 4
  node n1 [] pods [] services []
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.10:80/TCP -> Reject
    ExternalIP 192.0.2.11:80/TCP -> Reject
# A node that nothing names changes nothing.
A: node third 192.0.2.12
next
  nothing
A: service default/a 10.96.0.1:80 external=192.0.2.12
next
  revision 5
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
A: node third 192.0.2.13
next
  revision 6
  default/a
    ClusterIP 10.96.0.1:80/TCP -> Reject
    ExternalIP 192.0.2.12:80/TCP -> Reject
