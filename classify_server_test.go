package idemmail_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/smtp"
	"net/textproto"
	"strings"
	"testing"
	"time"
)

func readReply(expected int, text string) func(*testing.T) error {
	return func(t *testing.T) error {
		c := dialTCP(t, listenTCP(t, func(c net.Conn) { io.WriteString(c, text+"\r\n") }))
		_, _, err := textproto.NewReader(bufio.NewReader(c)).ReadResponse(expected)
		return err
	}
}

// smtpSession sends a mail to a server with these replies to RCPT and to the
// final dot; an empty reply hangs up.
func smtpSession(rcpt, dot string) func(*testing.T) error {
	serve := func(c net.Conn) {
		r := textproto.NewReader(bufio.NewReader(c))
		say := func(line string) { io.WriteString(c, line+"\r\n") }
		say("220 mail.example ESMTP")
		for {
			line, err := r.ReadLine()
			if err != nil {
				return
			}
			switch command, _, _ := strings.Cut(line, " "); command {
			case "RCPT":
				say(rcpt)
			case "DATA":
				say("354 go ahead")
				if _, err := r.ReadDotBytes(); err != nil || dot == "" {
					return
				}
				say(dot)
			default:
				say("250 ok")
			}
		}
	}
	return func(t *testing.T) error {
		return smtp.SendMail(listenTCP(t, serve), nil, "a@example.com", []string{"b@example.com"}, []byte("Subject: x\r\n\r\nx\r\n"))
	}
}

func httpServer(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server
}

// postHTTP answers the error that the client makes, or that of reading the answer.
func postHTTP(ctx context.Context, client *http.Client, url string) error {
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	return &httpError{code: resp.StatusCode}
}

func httpStatus(code int) func(*testing.T) error {
	return func(t *testing.T) error {
		server := httpServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		return postHTTP(context.Background(), server.Client(), server.URL)
	}
}

func httpRefused(t *testing.T) error {
	client := &http.Client{Transport: &http.Transport{}}
	return postHTTP(context.Background(), client, "http://"+deadPort(t))
}

func httpLost(t *testing.T) error {
	server := httpServer(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, _ := http.NewResponseController(w).Hijack()
		c.Close()
	})
	return postHTTP(context.Background(), server.Client(), server.URL)
}

func httpCutOff(t *testing.T) error {
	server := httpServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "{")
	})
	return postHTTP(context.Background(), server.Client(), server.URL)
}

func httpTimedOut(t *testing.T) error {
	server := httpServer(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	client := server.Client()
	client.Timeout = 50 * time.Millisecond
	return postHTTP(context.Background(), client, server.URL)
}

func httpCancelled(t *testing.T) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := httpServer(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	})
	return postHTTP(ctx, server.Client(), server.URL)
}

func httpUntrusted(t *testing.T) error {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return postHTTP(context.Background(), &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()},
	}}, server.URL)
}
