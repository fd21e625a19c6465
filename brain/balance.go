package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// BalanceAnnotation is the annotation of a Service that chooses how new connections are shared between endpoints.
const BalanceAnnotation = "switchyard.net/balance"

// balances has the values of the annotation. All others count as absent; see [BadBalance].
var balances = map[string]state.Balance{"random": state.Random, "hash": state.HashClient, "hash-connection": state.HashConnection}

// BadBalance reports whether the annotation of a service has a value that is not known here.
func BadBalance(svc *model.Service) bool {
	_, known := balances[svc.Balance]
	return svc.Balance != "" && !known
}
