"""TLS as the API server does it: by an authority and the Service's name."""

import socket
import ssl
import threading

from dra_driver.admission.certificates import Pair, context_for

NAME = "gpu-dra-driver-webhook.gpu-dra-driver.svc"


def shown(server: ssl.SSLContext, authorities: bytes, name: str = NAME) -> bytes:
    """The certificate (DER) that a server shows; raises SSLError when it isn't trusted."""
    client = ssl.create_default_context(cadata=authorities.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    theirs.settimeout(30)

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secure:
                secure.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as secure:
            return secure.getpeercert(binary_form=True) or b""
    finally:
        ours.close()
        thread.join()


def shown_by(pair: Pair, authorities: bytes = b"", name: str = NAME) -> bytes:
    """The certificate that such a pair shows to a client that trusts its authorities."""
    return shown(context_for(pair.certificate, pair.key), authorities or pair.authorities, name)
