package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// A machine is where something was measured.
type machine struct {
	system    string
	processor string
	cores     int
	sha       string // whether the processor has instructions for SHA-256; empty: not known
}

// thisMachine reads what Linux tells; elsewhere it knows less.
func thisMachine() machine {
	m := machine{system: runtime.GOOS + "/" + runtime.GOARCH, processor: "unknown processor", cores: runtime.GOMAXPROCS(0)}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "model name":
			m.processor = value
		case "flags":
			m.sha = "without SHA-NI"
			if slices.Contains(strings.Fields(value), "sha_ni") {
				m.sha = "with SHA-NI"
			}
		}
	}
	return m
}

func (m machine) String() string {
	text := fmt.Sprintf("%s, %d cores, %s", m.processor, m.cores, m.system)
	if m.sha != "" {
		text += ", " + m.sha
	}
	return text
}

// load answers how many processes wanted a core during the last minute, on
// average; empty where the system does not say.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// versions answers those of Go and of the modules that are measured.
func versions() []string {
	list := []string{runtime.Version()}
	measured := []string{
		"github.com/ThreeDotsLabs/watermill", "github.com/hashicorp/golang-lru/v2", "github.com/maypok86/otter/v2",
		"github.com/redis/go-redis/v9", "go.mongodb.org/mongo-driver/v2", "github.com/jackc/pgx/v5", "modernc.org/sqlite",
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return list
	}
	for _, d := range build.Deps {
		if slices.Contains(measured, d.Path) {
			list = append(list, strings.TrimPrefix(d.Path, "github.com/")+" "+cmp.Or(d.Version, "(devel)"))
		}
	}
	return list
}
