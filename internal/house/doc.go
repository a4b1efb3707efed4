// Package house holds the tests that keep the tree in order: which package may
// import which, and what the files beside the code must say.
package house
