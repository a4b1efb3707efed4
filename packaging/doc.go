// Package packaging holds what a distribution package installs beside the
// binary, and the tests of it; README.md says where each file goes.
package packaging
