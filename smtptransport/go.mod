module github.com/idemmail/idemmail/smtptransport

go 1.25.0

require (
	github.com/emersion/go-message v0.18.2
	github.com/emersion/go-sasl v0.0.0-20241020182733-b788ff22d5a6
	github.com/emersion/go-smtp v0.26.0
	github.com/idemmail/idemmail v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/idemmail/idemmail => ../
