# Nothing is published before all sources are complete.
source A
source B
A: service default/web 10.96.0.1:80
next
  nothing
complete A
next
  nothing
B: slice default/web-1 web 10.0.0.1
next
  nothing
complete B
next
  revision 1, full
  node n1 [] pods [] services []
  default/web
    ClusterIP 10.96.0.1:80/TCP -> 10.0.0.1:8080
next
  nothing
# Completing twice is no news.
complete A
next
  nothing
