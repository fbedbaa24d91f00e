//go:build unix

package testserver

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Postfix is a mail server that takes mail for any address at example.com
// and delivers it to one local mailbox. It offers STARTTLS, SMTPUTF8, 8BITMIME
// and SIZE (1 MB).
type Postfix struct {
	Addr    string         // with STARTTLS
	TLSAddr string         // with implicit TLS
	Roots   *x509.CertPool // trusts its certificate

	mailbox string
}

// StartPostfix starts one. It needs root, and Debian's postfix 3.
func StartPostfix(t testing.TB) *Postfix {
	t.Helper()
	Require(t)
	if os.Getuid() != 0 {
		Missing(t, "postfix", "only root can start it")
	}
	binary, err := exec.LookPath("postfix")
	if err != nil { // not on every PATH
		binary, err = exec.LookPath("/usr/sbin/postfix")
	}
	if err != nil {
		Missing(t, "postfix", err.Error())
	}
	daemons, err := exec.Command(filepath.Join(filepath.Dir(binary), "postconf"), "-d", "-h", "daemon_directory").Output()
	if err != nil {
		Missing(t, "postfix", "postconf: "+err.Error())
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // its processes have users of their own
		t.Fatal(err)
	}
	p := &Postfix{
		Addr:    loopback(FreePort(t)),
		TLSAddr: loopback(FreePort(t)),
		mailbox: filepath.Join(dir, "mail", "all", "new"),
	}
	p.configure(t, dir)
	etc := filepath.Join(dir, "etc")
	if out, err := exec.Command(binary, "-c", etc, "check").CombinedOutput(); err != nil {
		Missing(t, "postfix", fmt.Sprintf("check: %v\n%s", err, out))
	}
	master := exec.Command(filepath.Join(strings.TrimSpace(string(daemons)), "master"), "-c", etc, "-d")
	master.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := master.Start(); err != nil {
		t.Fatalf("postfix master: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = master.Wait()
	}()
	t.Cleanup(func() {
		_ = master.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = syscall.Kill(-master.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("postfix:\n%s", log)
		}
	})
	for _, addr := range []string{p.Addr, p.TLSAddr} {
		waitForListener(t, addr, ended)
	}
	return p
}

func waitForListener(t testing.TB, addr string, ended <-chan struct{}) {
	t.Helper()
	for range 400 {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-ended:
			t.Fatal("postfix has ended")
		case <-time.After(25 * time.Millisecond):
		}
	}
	t.Fatalf("postfix does not listen on %s", addr)
}

// configure writes what postfix reads. main.cf has no comments at the end of
// lines.
func (p *Postfix) configure(t testing.TB, dir string) {
	t.Helper()
	certificate, roots := Certificate(t, "mta.test")
	p.Roots = roots
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(p.Addr)
	_, tlsPort, _ := net.SplitHostPort(p.TLSAddr)
	mkdir(t, filepath.Join(dir, "etc"), "root")
	mkdir(t, filepath.Join(dir, "spool"), "root")
	mkdir(t, filepath.Join(dir, "data"), "postfix")
	mkdir(t, filepath.Join(dir, "mail"), "nobody")
	for name, content := range map[string]string{
		"etc/cert.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})),
		"etc/key.pem":   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		"etc/main.cf":   strings.NewReplacer("DIR", dir).Replace(postfixMain),
		"etc/master.cf": strings.NewReplacer("TLSPORT", tlsPort, "PORT", port).Replace(postfixMaster),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etc/main.cf", "etc/master.cf"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func mkdir(t testing.TB, name, owner string) {
	t.Helper()
	if err := os.Mkdir(name, 0o755); err != nil {
		t.Fatal(err)
	}
	u, err := user.Lookup(owner)
	if err != nil {
		Missing(t, "postfix", err.Error())
	}
	uid, _ := strconv.Atoi(u.Uid)
	if err := os.Chown(name, uid, -1); err != nil {
		t.Fatal(err)
	}
}

// Mailbox waits until so many messages have been delivered and returns all
// that have, as they lie in the mailbox: with LF line ends, below the header
// fields that postfix adds.
func (p *Postfix) Mailbox(t testing.TB, atLeast int) []string {
	t.Helper()
	for range 400 {
		if files, _ := os.ReadDir(p.mailbox); len(files) >= atLeast {
			var messages []string
			for _, f := range files {
				message, err := os.ReadFile(filepath.Join(p.mailbox, f.Name()))
				if err != nil {
					t.Fatal(err)
				}
				messages = append(messages, string(message))
			}
			return messages
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("postfix has delivered fewer than %d messages", atLeast)
	return nil
}

const postfixMain = `compatibility_level = 3.6
queue_directory = DIR/spool
data_directory = DIR/data
maillog_file = DIR/log
maillog_file_prefixes = DIR
myhostname = mta.test
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mydestination =
alias_maps =
local_recipient_maps =
virtual_mailbox_domains = example.com
virtual_mailbox_base = DIR/mail
virtual_mailbox_maps = static:all/
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
smtpd_relay_restrictions = reject_unauth_destination
smtpd_tls_security_level = may
smtpd_tls_cert_file = DIR/etc/cert.pem
smtpd_tls_key_file = DIR/etc/key.pem
message_size_limit = 1000000
mailbox_size_limit = 0
virtual_mailbox_limit = 0
`

const postfixMaster = `PORT inet n - n - - smtpd
TLSPORT inet n - n - - smtpd -o smtpd_tls_wrappermode=yes
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
virtual unix - n n - - virtual
error unix - - n - - error
retry unix - - n - - error
anvil unix - - n - 1 anvil
tlsmgr unix - - n - 1 tlsmgr
postlog unix-dgram n - n - 1 postlogd
`
