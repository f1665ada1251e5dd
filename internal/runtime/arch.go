package runtime

import goruntime "runtime"

// nodeArch is this host's processor in npm's words. Machines run on the host's processor.
func nodeArch() string {
	if goruntime.GOARCH == "amd64" {
		return "x64"
	}
	return goruntime.GOARCH
}

// nodePackage is the npm package that carries node's binary for this host.
func nodePackage() string { return "node-linux-" + nodeArch() }
