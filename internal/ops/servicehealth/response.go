package servicehealth

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/switchyard-net/switchyard/state"
)

type answer struct {
	Service             service `json:"service"`
	LocalEndpoints      int     `json:"localEndpoints"`
	ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
}

type service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// handler answers on one port: 200 if connections may come, else 503. The answer is the same for every request. A
// service that has gone since the connection was made has no endpoints.
func (s *Server) handler(p *port, family state.Family) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		owner, endpoints := s.local(p, family)
		healthy := s.o.Healthy()
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(endpoints))
		code := http.StatusServiceUnavailable
		if endpoints > 0 && healthy {
			code = http.StatusOK
		}
		w.WriteHeader(code)
		// The only possible error is that the client has gone.
		_ = json.NewEncoder(w).Encode(answer{service{owner.Namespace, owner.Name}, endpoints, healthy})
	})
}
