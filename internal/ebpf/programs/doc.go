// Package programs has the programs at the sockets of a node, and attaches them to a cgroup.
//
// hooks.c is what runs, lookup.h how it finds its way. Both are compiled by "make programs" into what is embedded here.
package programs

// MaxMeshPorts is how many ports of service meshes the programs can look at: MESH_PORTS of hooks.c.
const MaxMeshPorts = 4
