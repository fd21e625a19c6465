// Package balance sends thousands of real connections through a dataplane, and compares where they go with weights and hashes. It also measures how long
// clients wait that meet a silent endpoint.
package balance
