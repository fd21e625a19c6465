// Package dataplanes opens dataplanes by name, as tools need them that run a node without its runtime.
package dataplanes
