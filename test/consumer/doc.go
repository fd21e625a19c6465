// Package consumer tests that programs in other modules can require, import and build the modules of this repository.
package consumer
