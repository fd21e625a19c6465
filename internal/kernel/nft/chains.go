package nft

// BaseChain is a chain of any table that the kernel calls from a hook.
type BaseChain struct {
	Family      string // ip, ip6 or inet
	Table, Name string
	Type        string // filter, nat or route
	Hook        uint32 // [Prerouting] and so on
	Priority    int32
	Drops       bool // packets that no rule accepts
}

// decodeBaseChain reports false for a chain that others jump to.
func decodeBaseChain(family string, attrs []byte) (BaseChain, bool) {
	hook := findAttr(attrs, nftaChainHook, 0)
	if hook == nil {
		return BaseChain{}, false
	}
	policy := findAttr(attrs, nftaChainPolicy, 0)
	return BaseChain{
		Family: family, Table: attrStr(attrs, nftaChainTable), Name: attrStr(attrs, nftaChainName), Type: attrStr(attrs, nftaChainType),
		Hook: attrUint32(hook, nftaHookHooknum), Priority: int32(attrUint32(hook, nftaHookPriority)),
		Drops: len(policy) == 4 && beUint32(policy) == nfDrop,
	}, true
}

// ChainUse is how often a chain is used: once for each of its rules, and once for each rule that leads to it.
type ChainUse struct {
	Table, Name string
	Uses        int
}
