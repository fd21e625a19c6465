package nft

// The kernel's names and numbers, from include/uapi/linux/netfilter/nf_tables.h where no other file is named. They stand here rather
// than in golang.org/x/sys/unix because that package has them on Linux only, and lacks some. A test compares those that it has.

// Families (linux/netfilter.h).
const (
	nfprotoINet = 1
	nfprotoIPv4 = 2
	nfprotoIPv6 = 10
)

// Netlink messages and their flags (linux/netlink.h), and batches of nfnetlink (linux/netfilter/nfnetlink.h).
const (
	nlmFRequest = 0x1
	nlmFAck     = 0x4
	nlmFExcl    = 0x200
	nlmFCreate  = 0x400
	nlmFAppend  = 0x800

	nfnlSubsysNftables = 10
	nfnlMsgBatchBegin  = 16
	nfnlMsgBatchEnd    = 17
)

// Messages of nf_tables (enum nf_tables_msg_types).
const (
	nftMsgNewTable   = 0
	nftMsgGetTable   = 1
	nftMsgDelTable   = 2
	nftMsgNewChain   = 3
	nftMsgGetChain   = 4
	nftMsgDelChain   = 5
	nftMsgNewRule    = 6
	nftMsgGetRule    = 7
	nftMsgDelRule    = 8
	nftMsgNewSet     = 9
	nftMsgGetSet     = 10
	nftMsgDelSet     = 11
	nftMsgNewSetElem = 12
	nftMsgGetSetElem = 13
	nftMsgDelSetElem = 14
	nftMsgGetGen     = 16
)

// nameOfTable is NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE and so on: the first attribute of all messages that
// concern a table.
const nameOfTable = 1

// Attributes that several messages share.
const (
	nftaListElem = 1 // enum nft_list_attributes

	nftaDataValue   = 1 // enum nft_data_attributes
	nftaDataVerdict = 2

	nftaVerdictCode  = 1 // enum nft_verdict_attributes
	nftaVerdictChain = 2

	nftaHookHooknum  = 1 // enum nft_hook_attributes
	nftaHookPriority = 2
)

// Attributes of tables (enum nft_table_attributes) and of generations (enum nft_gen_attributes).
const (
	nftaTableName     = 1
	nftaTableFlags    = 2
	nftaTableUserdata = 6
	nftaTableOwner    = 7

	nftTableFDormant = 0x1 // enum nft_table_flags
	nftTableFOwner   = 0x2
	nftTableFPersist = 0x4

	nftaGenID = 1
)

// Attributes of chains (enum nft_chain_attributes) and rules (enum nft_rule_attributes).
const (
	nftaChainTable  = 1
	nftaChainName   = 3
	nftaChainHook   = 4
	nftaChainPolicy = 5
	nftaChainUse    = 6
	nftaChainType   = 7

	nftaRuleTable       = 1
	nftaRuleChain       = 2
	nftaRuleHandle      = 3
	nftaRuleExpressions = 4
)

// Attributes of sets (enum nft_set_attributes), of their description and of its fields.
const (
	nftaSetTable    = 1
	nftaSetName     = 2
	nftaSetFlags    = 3
	nftaSetKeyType  = 4
	nftaSetKeyLen   = 5
	nftaSetDataType = 6
	nftaSetDataLen  = 7
	nftaSetDesc     = 9
	nftaSetID       = 10
	nftaSetUserdata = 13
	nftaSetExpr     = 17
	nftaSetCount    = 20 // since Linux 6.18

	nftaSetDescSize   = 1 // enum nft_set_desc_attributes
	nftaSetDescConcat = 2

	nftaSetFieldLen = 1 // enum nft_set_field_attributes
)

// Flags of sets (enum nft_set_flags).
const (
	nftSetAnonymous = 0x1
	nftSetInterval  = 0x4
	nftSetMap       = 0x8
	nftSetTimeout   = 0x10
	nftSetEval      = 0x20
	nftSetConcat    = 0x80
)

// Attributes of lists of elements (enum nft_set_elem_list_attributes) and of elements (enum nft_set_elem_attributes).
const (
	nftaSetElemListTable    = 1
	nftaSetElemListSet      = 2
	nftaSetElemListElements = 3

	nftaSetElemKey        = 1
	nftaSetElemData       = 2
	nftaSetElemTimeout    = 4
	nftaSetElemExpiration = 5
	nftaSetElemUserdata   = 6
	nftaSetElemExpr       = 7
	nftaSetElemKeyEnd     = 10
)

// Attributes of expressions (enum nft_expr_attributes).
const (
	nftaExprName = 1
	nftaExprData = 2
)

// Registers and verdicts (enum nft_registers, enum nft_verdicts; NF_DROP and NF_ACCEPT of linux/netfilter.h).
const (
	nftRegVerdict = 0
	nftReg1       = 1 // 16 bytes wide, as the three that follow
	nftReg32_00   = 8 // 4 bytes wide, as the fifteen that follow

	nfDrop    = 0
	nfAccept  = 1
	nftJump   = -3
	nftGoto   = -4
	nftReturn = -5
)

// The expression payload (enum nft_payload_attributes, enum nft_payload_bases).
const (
	nftaPayloadDreg   = 1
	nftaPayloadBase   = 2
	nftaPayloadOffset = 3
	nftaPayloadLen    = 4

	nftPayloadNetworkHeader   = 1
	nftPayloadTransportHeader = 2
)

// The expression meta (enum nft_meta_attributes, enum nft_meta_keys).
const (
	nftaMetaDreg = 1
	nftaMetaKey  = 2
	nftaMetaSreg = 3

	nftMetaMark    = 3
	nftMetaIIFName = 6
	nftMetaL4Proto = 16
)

// The expression ct (enum nft_ct_attributes, enum nft_ct_keys; linux/netfilter/nf_conntrack_tuple_common.h and
// nf_conntrack_common.h).
const (
	nftaCtDreg      = 1
	nftaCtKey       = 2
	nftaCtDirection = 3

	nftCtState     = 0
	nftCtDirection = 1
	nftCtStatus    = 2
	nftCtProtoSrc  = 11
	nftCtProtoDst  = 12
	nftCtSrcIP     = 19
	nftCtDstIP     = 20
	nftCtSrcIP6    = 21
	nftCtDstIP6    = 22

	ipCtDirOriginal = 0
	ipCtDirReply    = 1
	ipCtNew         = 2
	ipCtNumber      = 3 // IP_CT_IS_REPLY: a state has the same bit in both directions
	ipsConfirmed    = 1 << 3
	ipsDstNAT       = 1 << 5
)

// The expression counter (enum nft_counter_attributes).
const (
	counterName = "counter"

	nftaCounterPackets = 2
)

// The expressions cmp and bitwise (enum nft_cmp_attributes, enum nft_cmp_ops, enum nft_bitwise_attributes).
const (
	nftaCmpSreg = 1
	nftaCmpOp   = 2
	nftaCmpData = 3

	nftCmpEq  = 0
	nftCmpNeq = 1

	nftaBitwiseSreg = 1
	nftaBitwiseDreg = 2
	nftaBitwiseLen  = 3
	nftaBitwiseMask = 4
	nftaBitwiseXor  = 5
)

// The expressions lookup and dynset (enum nft_lookup_attributes, enum nft_dynset_attributes, enum nft_dynset_ops).
const (
	nftaLookupSet   = 1
	nftaLookupSreg  = 2
	nftaLookupDreg  = 3
	nftaLookupFlags = 5

	nftLookupInverted = 1 // NFT_LOOKUP_F_INV

	nftaDynsetSetName  = 1
	nftaDynsetOp       = 3
	nftaDynsetSregKey  = 4
	nftaDynsetSregData = 5
	nftaDynsetTimeout  = 6

	nftDynsetOpAdd    = 0
	nftDynsetOpUpdate = 1
	nftDynsetOpDelete = 2
)

// The expression numgen (enum nft_ng_attributes, enum nft_ng_types).
const (
	nftaNgDreg    = 1
	nftaNgModulus = 2
	nftaNgType    = 3
	nftaNgOffset  = 4

	nftNgRandom = 1
)

// The expression hash (enum nft_hash_attributes, enum nft_hash_types).
const (
	nftaHashSreg    = 1
	nftaHashDreg    = 2
	nftaHashLen     = 3
	nftaHashModulus = 4
	nftaHashSeed    = 5
	nftaHashType    = 7

	nftHashJenkins = 0
)

// The expressions nat and masq (enum nft_nat_attributes, enum nft_nat_types, enum nft_masq_attributes; linux/netfilter/nf_nat.h).
const (
	nftaNatType        = 1
	nftaNatFamily      = 2
	nftaNatRegAddrMin  = 3
	nftaNatRegProtoMin = 5
	nftaNatFlags       = 7

	nftNatDNAT = 1

	nftaMasqFlags = 1

	nfNatRangeMapIPs           = 1 << 0
	nfNatRangeProtoSpecified   = 1 << 1
	nfNatRangeProtoRandomFully = 1 << 4
)

// The expression reject (enum nft_reject_attributes, enum nft_reject_types; linux/icmp.h and icmpv6.h).
const (
	nftaRejectType     = 1
	nftaRejectICMPCode = 2

	nftRejectICMPUnreach = 0
	nftRejectTCPRst      = 1

	icmpPortUnreach   = 3
	icmpv6PortUnreach = 4
)

// The expression fib (enum nft_fib_attributes, enum nft_fib_result, enum nft_fib_flags; linux/rtnetlink.h).
const (
	nftaFibDreg   = 1
	nftaFibResult = 2
	nftaFibFlags  = 3

	nftFibResultAddrtype = 3

	nftaFibFSaddr = 1 << 0
	nftaFibFDaddr = 1 << 1

	rtnLocal = 2
)

// The expression immediate (enum nft_immediate_attributes).
const (
	nftaImmediateDreg = 1
	nftaImmediateData = 2
)

// User data of sets (enum nftnl_udata_set_types of libnftnl's udata.h) and the byte order in it (enum byteorder of nftables'
// datatype.h).
const (
	nftnlUdataSetKeyByteOrder  = 0
	nftnlUdataSetDataByteOrder = 1

	byteorderHostEndian = 1
)

// User data of tables and of elements (enum nftnl_udata_types and enum nftnl_udata_set_elem_types of libnftnl's udata.h).
const nftnlUdataComment = 0
