// Package plan works out which node serves a connection from outside. It is pure.
//
// Each port of a Service has a table of slots, and a connection has one slot by its hash. [Tables] fills a table with nodes by Maglev hashing. All
// nodes compute the same table. A slot also knows earlier owners, which may still have connections: see [Word].
package plan
