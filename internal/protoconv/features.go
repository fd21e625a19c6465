package protoconv

import (
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// Features returns the messages of features: the number of each is one more than its place in state.Features.
func Features(f state.Features) (list []localnetv1.Feature) {
	for one := range f.Each {
		list = append(list, localnetv1.Feature(one.Index()+1))
	}
	return list
}

// ParseFeatures returns the features of a list, without those that are not known here.
func ParseFeatures(list []localnetv1.Feature) (f state.Features) {
	for _, one := range list {
		if one > 0 { // a shift beyond the last bit gives 0
			f |= 1 << (one - 1)
		}
	}
	return f & state.AllFeatures
}
