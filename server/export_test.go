package server

// InstanceID returns the number that the server gives in every position.
func (s *Server) InstanceID() uint64 { return s.o.InstanceID }

// Clients returns the number of connections, over all listeners.
func (s *Server) Clients() int { return int(s.clients.Load()) }
