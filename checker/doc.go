// Package checker decides what the database says about a machine: Check takes
// an inventory, a set of entries and a policy and returns a Report. It does no
// I/O, so what happens on a machine can be replayed from its recording.
//
// Judge is the heart: one subject against all entries and the built-in checks.
// A device, an example of an entry and a line of db match go through the same
// code.
package checker
