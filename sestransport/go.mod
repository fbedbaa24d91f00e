module github.com/idemmail/idemmail/sestransport

go 1.25.0

require (
	github.com/aws/aws-sdk-go-v2 v1.43.7
	github.com/aws/aws-sdk-go-v2/service/sesv2 v1.67.0
	github.com/aws/smithy-go v1.27.8
	github.com/idemmail/idemmail v0.0.0
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
)

require (
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.4.38 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.7.38 // indirect
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.4.39 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/idemmail/idemmail => ../
