package kube

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/model"
)

// fieldSet names the fields of a protobuf message that are decoded. The others, such as managedFields, are the larger
// part of most objects. Decoding them would take most of the time and the memory of a first list.
type fieldSet struct {
	// fields has a set for each field that is decoded, at the field's number in generated.proto of k8s.io/api.
	fields byNumber
	// keys makes this an entry of a map of strings, which is decoded if it has one of these keys.
	keys []string
}

type byNumber []*fieldSet

// all stands for a field that is decoded whole.
var all = &fieldSet{}

// part is a message whose fields are decoded in part.
func part(f byNumber) *fieldSet { return &fieldSet{fields: f} }

// entries are the labels or annotations with one of keys.
func entries(keys ...string) *fieldSet { return &fieldSet{keys: keys} }

// metadata is an ObjectMeta with some labels and annotations, or nil for none.
func metadata(labels, annotations *fieldSet) *fieldSet {
	const name, namespace, resourceVersion, creationTimestamp, deletionTimestamp = 1, 3, 6, 8, 9
	return part(byNumber{
		name: all, namespace: all, resourceVersion: all, creationTimestamp: all, deletionTimestamp: all, 11: labels, 12: annotations,
	})
}

// The fields that strip and package kubeconv read. TestFieldsDecoded fails if a field is missing.
var (
	namespaceFields = part(byNumber{1: metadata(entries(optOutLabel), nil)})

	nodeFields = part(byNumber{
		1: metadata(entries(corev1.LabelTopologyZone), entries(model.EdgeAnnotation)),
		2: part(byNumber{1: all, 5: all, 7: all}), // spec: podCIDR, taints, podCIDRs
		3: part(byNumber{
			4: part(byNumber{1: all, 2: all, 4: all, 5: all, 6: all}), // conditions: type, status, lastTransitionTime, reason, message
			5: all,                                                    // addresses
		}), // status
	})

	serviceCIDRFields = part(byNumber{1: metadata(nil, nil), 2: all})

	serviceFields = part(byNumber{
		1: metadata(entries(proxyNameLabel), entries(model.ServiceAnnotations[:]...)),
		2: part(byNumber{
			1: part(byNumber{1: all, 2: all, 3: all, 5: all}), // ports: name, protocol, port, nodePort
			3: all, 4: all, 5: all, 7: all,                    // clusterIP, type, externalIPs, sessionAffinity
			9: all, 10: all, 11: all, 12: all, // loadBalancerSourceRanges, externalName, externalTrafficPolicy, healthCheckNodePort
			14: all, 18: all, 22: all, // sessionAffinityConfig, clusterIPs, internalTrafficPolicy
		}),
		3: part(byNumber{1: part(byNumber{1: part(byNumber{1: all, 3: all})})}), // status.loadBalancer.ingress: ip, ipMode
	})

	endpointSliceFields = part(byNumber{
		1: metadata(entries(discoveryv1.LabelServiceName, corev1.IsHeadlessService, proxyNameLabel), entries(corev1.EndpointsLastChangeTriggerTime, model.WeightAnnotation, model.CiliumWeightAnnotation)),
		2: part(byNumber{
			1: all, 2: all, 3: all, 6: all, 7: all, 8: all, // endpoints: addresses, conditions, hostname, nodeName, zone, hints
			4: part(byNumber{1: all, 2: all, 3: all}), // targetRef: kind, namespace, name
		}),
		3: part(byNumber{1: all, 2: all, 3: all}), // ports: name, protocol, port
		4: all,                                    // addressType
	})
)

// appendTo appends to dst the message without the fields that are not decoded.
func (f *fieldSet) appendTo(dst, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, wireType, size := protowire.ConsumeField(message)
		if size < 0 {
			return dst, protowire.ParseError(size)
		}
		field := message[:size]
		message = message[size:]
		if int(number) >= len(f.fields) || f.fields[number] == nil {
			continue
		}
		var err error
		if dst, err = f.fields[number].appendField(dst, field, wireType); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// appendField appends a field, decoded by f, with its tag.
func (f *fieldSet) appendField(dst, field []byte, wireType protowire.Type) ([]byte, error) {
	if f == all || wireType != protowire.BytesType { // another type is for the decoder to refuse
		return append(dst, field...), nil
	}
	_, _, tag := protowire.ConsumeTag(field)
	content, _ := protowire.ConsumeBytes(field[tag:])
	if f.keys != nil {
		if f.hasKey(content) {
			dst = append(dst, field...)
		}
		return dst, nil
	}
	dst = append(dst, field[:tag]...)
	start := len(dst)
	dst, err := f.appendTo(dst, content)
	var room [binary.MaxVarintLen64]byte
	length := protowire.AppendVarint(room[:0], uint64(len(dst)-start))
	return slices.Insert(dst, start, length...), err
}

// hasKey reports whether an entry of a map is decoded. An entry that does not begin with a key is, since the decoder may find one.
func (f *fieldSet) hasKey(entry []byte) bool {
	number, wireType, tag := protowire.ConsumeTag(entry)
	if number != 1 || wireType != protowire.BytesType {
		return true
	}
	key, size := protowire.ConsumeString(entry[tag:])
	return size < 0 || slices.Contains(f.keys, key)
}
