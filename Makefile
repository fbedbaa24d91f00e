# Versions of the tools, and of the newest drivers that the stores are tested
# with; go.mod has the lowest.
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK  = golang.org/x/vuln/cmd/govulncheck@v1.9.0
NEWEST       = github.com/redis/go-redis/v9@v9.23.0 go.mongodb.org/mongo-driver/v2@v2.10.0

FUZZTIME    ?= 30s

.PHONY: test provision lint fuzz soak bench

# Every module with the race detector, against real servers.
test: provision
	NEWEST="$(NEWEST)" scripts/test

# Installs the servers that the tests start: on Debian, as root.
provision:
	scripts/provision

lint:
	STATICCHECK="$(STATICCHECK)" GOVULNCHECK="$(GOVULNCHECK)" scripts/lint

# Every fuzz target for FUZZTIME.
fuzz:
	FUZZTIME="$(FUZZTIME)" scripts/fuzz

# The long form of what make test tries briefly: crashes, faults, a million
# sends by eight processes. Bounded; prints its figures.
soak: provision
	cd itest && GOWORK=off IDEMMAIL_TEST_SERVERS=1 IDEMMAIL_SOAK=1 go test -timeout 3h -v ./...
	$(MAKE) fuzz FUZZTIME=10m

# Measures everything side by side; writes docs/performance.md and its plot.
bench: provision
	cd bench && GOWORK=off go run .
