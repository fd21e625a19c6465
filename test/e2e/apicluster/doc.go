// Package apicluster keeps objects of package model in a real API server. It writes them in the API's form, and waits until all watchers
// have them.
package apicluster
