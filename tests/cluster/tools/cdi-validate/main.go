// Command cdi-validate reads CDI spec files with the CDI project's own library, as containerd does,
// and fails with the library's reason for each file that it refuses.
package main

import (
	"fmt"
	"os"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: cdi-validate FILE...")
		os.Exit(2)
	}
	status := 0
	for _, path := range os.Args[1:] {
		if _, err := cdi.ReadSpec(path, 0); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			status = 1
		}
	}
	os.Exit(status)
}
