// Package programs has the programs at the sockets of a node, and attaches them to a cgroup.
//
// hooks.c has the programs, and lookup.h their lookup of endpoints. "make programs" compiles both into the object files
// that are embedded here.
package programs

// MaxMeshPorts is how many ports of service meshes the programs can look at: MESH_PORTS of hooks.c.
const MaxMeshPorts = 4
