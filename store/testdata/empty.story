# An empty cluster is published too, with a node that only has its name. Without a source nothing is.
next
  nothing
source A
next
  nothing
complete A
next
  revision 1, full
  node n1 [] pods [] services []
next
  nothing
