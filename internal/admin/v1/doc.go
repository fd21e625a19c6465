// Package adminv1 is the code of the admin API, generated from admin.proto by make proto.
package adminv1
