package cli

import (
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the version that the linker set, else the module's version as the go command knows it, which names the commit.
func Version(set string) string {
	if set != "" {
		return set
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}

// VersionText is what 'switchyard version' prints: with the commit, if the go command knew it, and in FIPS mode with the cryptographic module.
func VersionText(set string) string {
	text := fmt.Sprintf("switchyard %s %s %s/%s", Version(set), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		text += commitOf(info)
	}
	if fips140.Enabled() {
		text += " FIPS 140-3 module " + fips140.Version()
	}
	return text
}

// commitOf names the commit that a program was built from, empty if it is not known.
func commitOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	switch revision := settings["vcs.revision"]; {
	case revision == "":
		return ""
	case settings["vcs.modified"] == "true":
		return " commit " + revision + " with changes"
	default:
		return " commit " + revision
	}
}
