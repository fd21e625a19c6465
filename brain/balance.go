package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// BalanceAnnotation is the annotation of a Service that chooses how new connections are shared between endpoints.
const BalanceAnnotation = "switchyard.net/balance"

// balances has the values of the annotation. All others count as absent; see [BadBalance].
var balances = map[string]state.Balance{"random": state.Random, "hash": state.HashClient, "hash-connection": state.HashConnection}

// BalanceOf returns the balance that the annotation of a service asks for. Session affinity wins over it.
func BalanceOf(svc *model.Service) state.Balance { return balances[svc.Balance] }

// BadBalance reports whether the annotation of a service that this instance routes has a value that is not known here.
func BadBalance(cfg *Config, svc *model.Service) bool {
	if skips(cfg, svc) != "" || svc.Balance == "" {
		return false
	}
	_, known := balances[svc.Balance]
	return !known
}
