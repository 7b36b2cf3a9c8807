module ringway/clients/go

go 1.21

require github.com/terra-farm/go-xen-api-client v0.0.2

require github.com/amfranz/go-xmlrpc-client v0.0.0-20190612172737-76858463955d // indirect
