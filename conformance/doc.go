// Package conformance is the suite that every dataplane passes: it sends real packets through a small cluster of network
// namespaces and checks their outcome.
//
// [Run] has two halves. The stories (stories/*.txtar) say for each rule what a user sees. The histories change a cluster at
// random and compare what happens to packets with what the oracle says must happen. Both drive the dataplane as the program
// does: cluster objects go through the store, the brain and the reconciler. README.md describes the language of the stories.
// The package exists on Linux only.
package conformance
