module github.com/idemmail/idemmail

go 1.25.0
