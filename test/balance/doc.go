// Package balance sends thousands of real connections through a dataplane, and compares where they go with weights and hashes.
package balance
