// Command stub stands in for the programs of a release. It is small, and links one module.
package main

import "github.com/blakesmith/ar"

func main() { println("stub", ar.HEADER_BYTE_SIZE) }
